"""The classes of the exported model's family; for another family this file is written anew."""

from sparing.models.stack.config import StackConfig as FamilyConfig
from sparing.models.stack.model import Stack as FamilyModel

__all__ = ["FamilyConfig", "FamilyModel"]
