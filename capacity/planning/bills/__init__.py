"""What a deployment costs, and what hosted APIs and batch tiers would."""
