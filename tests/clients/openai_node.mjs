// The `openai` package for Node.js: chat, Responses, embeddings.
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { ASK, HELLO, KEY, OSLO, URL, WEATHER, WEATHER_SCHEMA, expect, expectWeather, findEmbeddingModel, run } from "./steps.mjs";

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: KEY, maxRetries: 0 });
const City = z.object({ name: z.string(), people: z.int() });
const hello = [{ role: "user", content: "Hello" }];
const ask = [{ role: "user", content: ASK }];
const weather = { name: "get_weather", description: "The weather of a city", parameters: WEATHER_SCHEMA };

await run((model) => ({
  chat: async () => {
    const answer = await client.chat.completions.create({ model, messages: hello });
    expect(answer.choices[0].message.content, HELLO);
  },
  stream: async () => {
    const stream = client.chat.completions.stream({ model, messages: hello });
    expect(await stream.finalContent(), HELLO);
  },
  tools: async () => {
    const runner = client.chat.completions.runTools({
      model,
      messages: ask,
      tools: [{ type: "function", function: { ...weather, parse: JSON.parse, function: () => WEATHER } }],
    });
    expectWeather(await runner.finalContent());
  },
  structured: async () => {
    const answer = await client.chat.completions.parse({
      model,
      messages: ask,
      response_format: zodResponseFormat(City, "city"),
    });
    expect(answer.choices[0].message.parsed, OSLO);
  },
  embeddings: async () => {
    const found = await client.embeddings.create({ model: findEmbeddingModel(model), input: ["a", "bc"] });
    expect(found.data.map((each) => each.embedding), [[0.25, -0.5, 1], [0.25, -0.5, 2]]);
  },
  responses: async () => {
    expect((await client.responses.create({ model, input: "Hello" })).output_text, HELLO);
  },
  "responses stream": async () => {
    const response = await client.responses.stream({ model, input: "Hello" }).finalResponse();
    expect(response.output_text, HELLO);
  },
  "responses tools": async () => {
    const tools = [{ type: "function", ...weather, strict: true }];
    const first = await client.responses.create({ model, input: ask, tools });
    const call = first.output.find((item) => item.type === "function_call");
    const result = { type: "function_call_output", call_id: call.call_id, output: WEATHER };
    const second = await client.responses.create({ model, previous_response_id: first.id, input: [result], tools });
    expectWeather(second.output_text);
  },
  "responses structured": async () => {
    const answer = await client.responses.parse({ model, input: ask, text: { format: zodTextFormat(City, "city") } });
    expect(answer.output_parsed, OSLO);
  },
}));
