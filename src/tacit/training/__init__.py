"""Learn from text: one loop; methods differ in who is drawn, what is bounded, and the noise."""
