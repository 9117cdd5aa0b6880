// The Vercel AI SDK with the providers that speak the gateway's conventions.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createGoogleGenerativeAI } from "@ai-sdk/google";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, embedMany, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { ASK, CONVENTION, HELLO, KEY, OSLO, URL, WEATHER, expect, expectWeather, findEmbeddingModel, run, skip } from "./steps.mjs";

const openai = createOpenAI({ baseURL: `${URL}/v1`, apiKey: KEY });
const compatible = createOpenAICompatible({
  name: "gateway",
  baseURL: `${URL}/v1`,
  apiKey: KEY,
  supportsStructuredOutputs: true,
});
const anthropic = createAnthropic({ baseURL: `${URL}/v1`, apiKey: KEY });
const google = createGoogleGenerativeAI({ baseURL: `${URL}/v1beta`, apiKey: KEY });
const make = {
  openai: (model) => openai.chat(model),
  responses: (model) => openai.responses(model),
  compatible: (model) => compatible(model),
  anthropic: (model) => anthropic(model),
  google: (model) => google(model),
}[CONVENTION];
const embedding = {
  openai: (model) => openai.embeddingModel(model),
  compatible: (model) => compatible.embeddingModel(model),
  google: (model) => google.embeddingModel(model),
}[CONVENTION];
const tools = {
  get_weather: tool({
    description: "The weather of a city",
    inputSchema: z.object({ city: z.string() }),
    execute: ({ city }) => (expect(city, "Oslo"), WEATHER),
  }),
};
const City = z.object({ name: z.string(), people: z.int() });
const common = { maxRetries: 0 };

await run((name) => {
  const model = make(name);
  return {
    chat: async () => expect((await generateText({ ...common, model, prompt: "Hello" })).text, HELLO),
    stream: async () => {
      let text = "";
      for await (const piece of streamText({ ...common, model, prompt: "Hello" }).textStream) text += piece;
      expect(text, HELLO);
    },
    tools: async () => {
      const asked = { ...common, model, prompt: ASK, tools, stopWhen: stepCountIs(5) };
      expectWeather((await generateText(asked)).text);
    },
    "stream tools": async () => {
      const asked = { ...common, model, prompt: ASK, tools, stopWhen: stepCountIs(5) };
      expectWeather(await streamText(asked).text);
    },
    "next turn": async () => {
      const first = await generateText({ ...common, model, prompt: "Hello" });
      const messages = [
        { role: "user", content: "Hello" },
        ...first.response.messages,
        { role: "user", content: ASK },
      ];
      expect((await generateText({ ...common, model, messages })).text, HELLO);
    },
    structured: async () => {
      const asked = { ...common, model, prompt: ASK, output: Output.object({ schema: City }) };
      expect((await generateText(asked)).output, OSLO);
    },
    embeddings: async () => {
      if (!embedding) skip("this run is of a chat model");
      const found = await embedMany({ ...common, model: embedding(findEmbeddingModel(name)), values: ["a", "bc"] });
      expect(found.embeddings, [[0.25, -0.5, 1], [0.25, -0.5, 2]]);
    },
  };
});
