"""What can be searched, and how: domains, spaces, ask and tell, and surrogates of losses."""

from cotune.space.space import Params, Space, when

__all__ = ["Params", "Space", "when"]
