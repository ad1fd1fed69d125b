"""Training where the text stays with its holders, on Flower; in reading order:

settings.py   what a federation adds to a run, and which runs can be federated
naming.py     keyed names of users and entities
protocol.py   what is sent: the kit, who is present, a round, an answer to it
client.py     a client: its own records, one clipped update for each of its users that is drawn
cohort.py     who takes part: users under keyed names, where each is, which records the caps keep
asking.py     questions to clients and the answers that come in time
receiving.py  updates as they arrive: checked one by one, then a bounded sum
clients.py    who joined, where, and what each answers to a round
rounds.py     a round as a method of training: coins, a bounded sum, a release
server.py     a federated run: the one loop, one place for noise, one ledger
app.py        both sides as Flower's ServerApp and ClientApp
starting.py   Flower's processes on this machine: started, watched, ended; its simulation
simulating.py corpora dealt to clients that are made up
demo.py       three clients in processes of their own, one of which is killed
"""

import os

# Flower looks at these when it is first imported: nothing is sent to its makers.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
