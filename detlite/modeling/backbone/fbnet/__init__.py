"""FBNet's backbone and heads. Importing registers them, as the registries do on demand."""

from . import fbnet as fbnet
