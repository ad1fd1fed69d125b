"""From `tacit serve` to a downloaded, verified model, through the API alone.

    python examples/client_tour.py FOLDER

Starts a server on this machine, plays all its people (an admin, contributors, an analyst and a
consumer), and leaves a model in FOLDER/model that works without the server.
"""

import re
import subprocess
import sys
from pathlib import Path

import tacit
from tacit.corpora import customersim
from tacit.verification.runs import verify

RUN = {
    "name": "tour",
    "method": "dp-sgd",
    "plan": {"protect": "both", "epsilon": 8, "steps": 4, "user_rate": 0.3, "clip_norm": 0.5},
    "detectors": ["patterns", "lists"],
    "model": {"kind": "lstm", "config": {"embedding_size": 8, "hidden_size": 8, "layers": 1}},
    "tokenizer": {"size": 400},
    "context": 24,
}


def main(folder: Path) -> None:
    """The whole tour."""
    command = [sys.executable, "-m", "tacit", "serve", "--folder", str(folder / "server")]
    server = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        address = first_words(server)
        token = first_token(folder / "server")
        tour(folder, address, token)
    finally:
        server.terminate()
        server.wait()


def first_words(server: "subprocess.Popen[str]") -> str:
    """The address, as a server prints it."""
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"http://\S+", line):
            return found.group()
    return ""


def first_token(folder: Path) -> str:
    """The admin's token, which a new server puts into a file where nobody sees a terminal."""
    found = re.search(r"tacit_\S+", (folder / "first-sign-in.txt").read_text())
    return found.group() if found else ""


def tour(folder: Path, address: str, token: str) -> None:
    """Everybody's part, in order."""
    with tacit.Client(address, token) as admin:
        limits = {"users": 8, "users+entities": 16}
        dataset = admin.add_dataset("dialogs", description="Made up.", limits=limits)["id"]
        print(f"dataset {dataset} with a budget of {limits}")
        tokens = {}
        for role in ("contributor", "analyst", "consumer"):
            account = admin.add_account(f"a {role}", role)
            tokens[role] = admin.add_token(account["id"])
        # An admin brings what many users wrote; each record keeps its user.
        sent = admin.add_corpus(dataset, customersim.generate(80, 3), key="the first dialogs")
        print(f"{sent} records sent by the admin")

    with tacit.Client(address, tokens["contributor"]) as contributor:
        contributor.add_record(dataset, "My order 4829-1137 is late, please call (212) 555-0147.")
        contributor.add_record(dataset, "This one was a mistake.")
        mine = list(contributor.my_records(dataset))
        print(f"the contributor sees {len(mine)} records, all their own")
        gone = contributor.call("DELETE", f"/datasets/{dataset}/records/{mine[0]['id']}")
        print(f"{gone['deleted']} deleted. {gone['consequence']}")

    with tacit.Client(address, tokens["analyst"]) as analyst:
        found = analyst.detect(dataset, detectors=["patterns", "lists"])
        print(f"detected: {found['result']['mentions_by_kind']}")
        dry = analyst.plan(dataset, RUN)
        print(f"dry run: epsilon {dry['epsilon']}, fits the budget: {dry['fits_budget']}")
        run = analyst.start_run(dataset, RUN)["id"]
        for kind, fields in analyst.events(run):
            if kind == "progress":
                print(f"step {fields['step']} of {fields['steps']}: {fields['spent']}")
        print(f"the run is {analyst.run(run)['state']}; spent: {analyst.budget(dataset)['spent']}")

    with tacit.Client(address, tokens["consumer"]) as consumer:
        model = consumer.model_named("tour")
        answer = consumer.predict(model, "my order number", words=3)
        print(f"on the server: {answer['completion']!r}, warning: {answer['warning']}")
        consumer.pull(model, folder / "model")

    bad = [check for check in verify(folder / "model") if not check.ok]
    print("the downloaded certificate:", bad or "everything matches")
    model = tacit.open_run(folder / "model")
    answer = model.generate("my order number", max_new_tokens=3, temperature=0)
    print(f"without the server: {answer!r}")


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "client-tour")
    place.mkdir(parents=True, exist_ok=True)
    main(place)
