"""The federated method `federated_mean`: `plugin` runs at the aggregator, `learner` at the nodes."""
