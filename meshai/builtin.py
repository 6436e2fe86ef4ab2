"""Registers our own commands, and makes the model the settings ask for."""

from meshai.clock import Clock
from meshai.commands import help as help_command
from meshai.commands import ignore, memory, more, ping, quiet, reset, restart_radio, stats, status, whoami
from meshai.config import ModelSettings
from meshai.model.base import LanguageModel
from meshai.model.embedded import EmbeddedModel
from meshai.model.openai import OpenAIModel
from meshai.registry import Registry


def register(registry: Registry) -> None:
    """Register everything the program brings along, in the order `!help` lists it."""
    for module in (help_command, more, ping, status, whoami, memory, reset):
        registry.command(module.command)
    for command in (quiet.command, ignore.command, ignore.undo, stats.command, restart_radio.command):
        registry.command(command)


def model(settings: ModelSettings, *, clock: Clock) -> LanguageModel | None:
    """The model the settings ask for; None when they want none."""
    if settings.base_url:
        return OpenAIModel(settings, clock=clock)
    return None if settings.embedded == "off" else EmbeddedModel(settings, clock=clock)
