"""News: a flag that a runtime raises when something has changed and that its agent takes down."""

import asyncio


class News(asyncio.Event):
    """Raised by ``set``, however often; taken down by who has waited for it."""

    async def taken_within(self, seconds: float) -> bool:
        """Wait until there is news, and take it down; False when there was none for so long."""
        try:
            async with asyncio.timeout(seconds):
                await self.wait()
        except TimeoutError:
            return False
        self.clear()
        return True
