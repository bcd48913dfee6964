"""What plays the scenarios: agents, a proxy, and servers in the arrangements that scenarios need."""
