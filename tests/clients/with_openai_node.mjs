// openai for Node: chat, streamed and whole, through its own helper for streams.
// npm: openai@7.59.0
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const tools = [{ type: "function", function: { name: "Weather", parameters: { type: "object" } } }];
const body = {
  model: "default", max_tokens: 300, min_tokens: 150, tools,
  messages: [{ role: "user", content: "The weather in Rome?" }],
};
const said = ({ choices, usage }) => ({
  usage,
  choices: choices.map(({ message, finish_reason }) => ({
    finish_reason, content: message.content, reasoning: message.reasoning_content,
    calls: (message.tool_calls ?? []).map((call) => call.function),
  })),
});
const whole = said(await client.chat.completions.create(body));
const stream = client.chat.completions.stream({ ...body, stream_options: { include_usage: true } });
const streamed = said(await stream.finalChatCompletion());
console.log("saw: " + JSON.stringify({ whole, streamed }));
