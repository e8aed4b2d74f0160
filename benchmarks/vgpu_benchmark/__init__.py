"""The budgets of a node: 500 claims on eight GPUs, three real processes, everything around them a stand-in."""
