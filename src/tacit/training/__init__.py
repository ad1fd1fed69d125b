"""Learn from text: one loop; methods differ in who is drawn, what is bounded, and the noise."""

import os

# Threads of a product that have nothing to do wait for each other by turning in a loop, for as
# long as it takes: with other work on the machine, a step took twenty times as long. Here they
# turn for some microseconds and then sleep. It counts if torch is not loaded yet.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
