"""The types of the fixtures."""

from collections.abc import Callable

from driver.agent import Agent
from driver.world import World

# Starts an agent of the language with this name.
StartAgent = Callable[[str], Agent]
# The servers of this arrangement.
GetWorld = Callable[[str], World]
