"""What a run learns from: records, owners, caps, protected entities, public inputs."""
