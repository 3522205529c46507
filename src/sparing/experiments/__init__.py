"""DDPWorld trainings compared: variants times seeds, each in a process of its own."""
