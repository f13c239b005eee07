"""Training: donors are finetuned, in stages that go on exactly where they stopped."""
