// The `@anthropic-ai/sdk` package: messages, streams, tools, structured output, token counts.
import Anthropic from "@anthropic-ai/sdk";
import { ASK, CITY_SCHEMA, HELLO, KEY, OSLO, URL, WEATHER, WEATHER_SCHEMA, expect, expectWeather, run } from "./steps.mjs";

const client = new Anthropic({ baseURL: URL, apiKey: KEY, maxRetries: 0 });
const hello = [{ role: "user", content: "Hello" }];
const ask = [{ role: "user", content: ASK }];
const tools = [{ name: "get_weather", description: "The weather of a city", input_schema: WEATHER_SCHEMA }];
const readText = (message) => message.content.filter((block) => block.type === "text").map((block) => block.text).join("");

await run((model) => ({
  chat: async () => expect(readText(await client.messages.create({ model, max_tokens: 100, messages: hello })), HELLO),
  stream: async () => {
    expect(await client.messages.stream({ model, max_tokens: 100, messages: hello }).finalText(), HELLO);
  },
  tools: async () => {
    const first = await client.messages.create({ model, max_tokens: 100, messages: ask, tools });
    const call = first.content.find((block) => block.type === "tool_use");
    expect(call.input, { city: "Oslo" });
    const result = { type: "tool_result", tool_use_id: call.id, content: WEATHER };
    const messages = [...ask, { role: "assistant", content: first.content }, { role: "user", content: [result] }];
    expectWeather(readText(await client.messages.create({ model, max_tokens: 100, messages, tools })));
  },
  structured: async () => {
    const format = { type: "json_schema", schema: CITY_SCHEMA };
    const message = await client.messages.create({ model, max_tokens: 100, messages: ask, output_config: { format } });
    expect(JSON.parse(readText(message)), OSLO);
  },
  count: async () => expect((await client.messages.countTokens({ model, messages: ask })).input_tokens > 0, true),
}));
