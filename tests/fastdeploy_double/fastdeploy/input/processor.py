"""The data processor, as #7747 makes one class of two, with what #7942 does before the parsers.

Multimodal models hand in an `mm_processor`; an output fallback that is on may change, hold or end the text.
"""

from fastdeploy import envs
from fastdeploy.output.fallback import OutputFallbackContext


class Processor:
    """Requests in, texts out; here the texts only.

    Parameters
    ----------
    tokenizer : object
        FastDeploy loads it from a model's folder.
    reasoning_parser_obj, tool_parser_obj : type, optional
    mm_processor : object, optional
    output_fallback_manager : OutputFallbackManager, optional
    """

    def __init__(
        self,
        tokenizer,
        reasoning_parser_obj=None,
        tool_parser_obj=None,
        mm_processor=None,
        output_fallback_manager=None,
    ):
        self.tokenizer, self.mm_processor, self.eos_token_ids = tokenizer, mm_processor, [4]
        self.decode_status, self.model_status_dict, self.tool_parser_dict = {}, {}, {}
        self.output_fallback_manager, self.output_fallback_texts = output_fallback_manager, {}
        self.reasoning_parser = reasoning_parser_obj and reasoning_parser_obj(tokenizer)
        self.tool_parser_obj = tool_parser_obj

    def ids2tokens(self, token_id, task_id):
        if envs.FD_USE_HF_TOKENIZER:
            return self.tokenizer.batch_decode([token_id])[0], [], ""
        if task_id not in self.decode_status:
            self.decode_status[task_id] = [0, 0, [], ""]
        status = self.decode_status[task_id]
        previous_texts = status[3]
        status[2].extend(token_id)
        text, status[0], status[1] = self.tokenizer.decode_token(status[2], status[0], status[1])
        status[3] += text
        return text, status[2], previous_texts

    def process_response_dict(self, response_dict, **kwargs):
        if response_dict.get("outputs") is None or response_dict.get("error_code", 200) != 200:
            return response_dict
        if kwargs.get("stream", True):
            return self.process_response_dict_streaming(response_dict, **kwargs)
        return self.process_response_dict_normal(response_dict, **kwargs)

    def process_response_dict_normal(self, response_dict, **kwargs):
        outputs, name = response_dict["outputs"], response_dict["request_id"]
        delta, _, previous = self.ids2tokens(outputs["token_ids"], name)
        if not response_dict["finished"]:
            return response_dict
        text = previous + delta
        if self.output_fallback_manager is not None:
            context = OutputFallbackContext(kwargs.get("request"), name, False, outputs, full_text=text)
            text = self.output_fallback_manager.apply(text, context)
        outputs["text"] = outputs["completion_tokens"] = text
        if self.reasoning_parser:
            outputs["reasoning_content"], outputs["text"] = self.reasoning_parser.extract_reasoning_content(
                text, kwargs.get("request"), self.model_status_dict[name]
            )
            outputs["reasoning_token_num"] = len(self.tokenizer.tokenize(outputs["reasoning_content"]))
        if self.tool_parser_obj:
            called = self.tool_parser_obj(self.tokenizer).extract_tool_calls(text, kwargs.get("request"))
            if called.tools_called:
                outputs["tool_calls"] = called.tool_calls
        del self.decode_status[name]
        self.model_status_dict.pop(name, None)
        return response_dict

    def process_response_dict_streaming(self, response_dict, **kwargs):
        outputs, name = response_dict["outputs"], response_dict["request_id"]
        ids, is_end = outputs["token_ids"], response_dict["finished"]
        delta, previous_ids, previous = self.ids2tokens(ids, name)
        if self.output_fallback_manager is not None:
            previous = self.output_fallback_texts.get(name, "")
            context = OutputFallbackContext(kwargs.get("request"), name, True, outputs, delta_text=delta)
            decision = self.output_fallback_manager.on_delta(name, delta, context)
            delta = decision.text
            if is_end and decision.action != "truncate":
                delta += self.output_fallback_manager.on_finish(name, context).text
            outputs["fallback_truncated"] = decision.action == "truncate"
            self.output_fallback_texts[name] = previous + delta
        outputs["text"] = outputs["completion_tokens"] = delta
        outputs["skipped"], outputs["tool_calls"], outputs["reasoning_content"] = False, None, ""
        answer = previous, previous + delta, delta, previous_ids, previous_ids + ids, ids
        if self.reasoning_parser:
            said = self.reasoning_parser.extract_reasoning_content_streaming(
                *answer, self.model_status_dict[name]
            )
            if said:
                reasoning = said.reasoning_content
                outputs["reasoning_token_num"] = len(self.tokenizer.tokenize(reasoning)) if reasoning else 0
                outputs["reasoning_content"], outputs["text"] = reasoning or "", said.content or ""
            else:
                outputs["skipped"] = not is_end
        if self.tool_parser_obj:
            if name not in self.tool_parser_dict:
                self.tool_parser_dict[name] = self.tool_parser_obj(self.tokenizer)
            said = self.tool_parser_dict[name].extract_tool_calls_streaming(*answer, kwargs.get("request"))
            if said is None:
                outputs["skipped"] = not is_end
            elif said.tool_calls:
                outputs["text"], outputs["tool_calls"], outputs["skipped"] = (
                    said.content,
                    said.tool_calls,
                    False,
                )
        if is_end:
            del self.decode_status[name]
            self.tool_parser_dict.pop(name, None)
            self.model_status_dict.pop(name, None)
            self.output_fallback_texts.pop(name, None)
        return response_dict
