"""Does the governor do for real what it does in simulation? Ten runs on four slots, real brokers and Ray."""
