"""What both serving modules do before an answer is written: results are waited for, and processed."""

from fastdeploy.utils import api_server_logger

__all__ = ["Parts", "api_server_logger", "body_of", "results_of"]


class Parts:
    """Classes by the names that a serving module has for them now, and its handler's log-probabilities.

    Parameters
    ----------
    names : dict
        The module's.
    handler : OpenAIServingChat or OpenAIServingCompletion
    steps : Steps
        Prompts' log-probabilities, which only FastDeploy makes.
    """

    def __init__(self, names, handler, steps):
        self._names, self._handler, self.steps = names, handler, steps

    def __getattr__(self, name):
        return self._names[name]

    def chat_logprobs(self, top, columns, texts):
        return self._handler._create_chat_logprobs(top, True, columns, texts)

    def completion_logprobs(self, top, columns):
        return self._handler._create_completion_logprobs(top, columns, 0)


async def results_of(handler, asyncio, request_id, choices):
    """All results of a request, processed; `asyncio` is what its module calls by that name."""
    client = handler.engine_client
    _, queue = await client.connection_manager.get_connection(request_id, choices)
    found, left = [], choices
    while left:
        client.check_model_weight_status()
        for result in await asyncio.wait_for(queue.get(), timeout=10):
            failed = result.get("error_code", 200) != 200
            found.append(result if failed else client.data_processor.process_response_dict(result))
            left -= failed or bool(result["finished"])
    await client.connection_manager.cleanup_request(request_id)
    client.semaphore.release()
    return found


def body_of(request):
    """A request as the restated generators read it."""
    return request.model_dump(exclude_none=True)
