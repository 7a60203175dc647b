"""Which policy ends training runs soonest? On recorded workloads, in virtual time."""
