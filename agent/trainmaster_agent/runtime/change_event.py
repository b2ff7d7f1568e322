"""`ChangeEvent`: an event that a runtime sets when something has changed and that its agent clears."""

import asyncio


class ChangeEvent(asyncio.Event):
    """Set by ``set``, however often; cleared by the one that has waited for it."""

    async def taken_within(self, seconds: float) -> bool:
        """Wait until the event is set, and clear it; return False if it was not set within ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                await self.wait()
        except TimeoutError:
            return False
        self.clear()
        return True
