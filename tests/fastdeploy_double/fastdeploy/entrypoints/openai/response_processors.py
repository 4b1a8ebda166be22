"""Between a generator of chat completions and the data processor."""


class ChatResponseProcessor:
    def __init__(self, data_processor):
        self.data_processor = data_processor

    def enable_multimodal_content(self):
        return False

    async def process_response_chat(self, request_outputs, stream, include_stop_str_in_output, request):
        for one in request_outputs:
            yield self.data_processor.process_response_dict(
                response_dict=one,
                stream=stream,
                include_stop_str_in_output=include_stop_str_in_output,
                request=request,
                audio_tokens=None,
                tts=False,
            )
