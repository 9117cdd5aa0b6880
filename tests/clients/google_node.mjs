// The `@google/genai` package: content, streams, tools, structured output, embeddings.
import { GoogleGenAI, Type } from "@google/genai";
import { ASK, HELLO, KEY, OSLO, URL, WEATHER, expect, expectWeather, findEmbeddingModel, run } from "./steps.mjs";

const client = new GoogleGenAI({ apiKey: KEY, httpOptions: { baseUrl: URL } });
const city = { type: Type.OBJECT, properties: { city: { type: Type.STRING } }, required: ["city"] };
const oslo = {
  type: Type.OBJECT,
  properties: { name: { type: Type.STRING }, people: { type: Type.INTEGER } },
  required: ["name", "people"],
};

await run((model) => ({
  chat: async () => expect((await client.models.generateContent({ model, contents: "Hello" })).text, HELLO),
  stream: async () => {
    let text = "";
    for await (const piece of await client.models.generateContentStream({ model, contents: "Hello" })) {
      text += piece.text ?? "";
    }
    expect(text, HELLO);
  },
  tools: async () => {
    const declared = { name: "get_weather", description: "The weather of a city", parameters: city };
    const config = { tools: [{ functionDeclarations: [declared] }] };
    const contents = [{ role: "user", parts: [{ text: ASK }] }];
    const first = await client.models.generateContent({ model, contents, config });
    const [call] = first.functionCalls;
    expect(call.args, { city: "Oslo" });
    const functionResponse = { name: call.name, id: call.id, response: { output: WEATHER } };
    contents.push(first.candidates[0].content, { role: "user", parts: [{ functionResponse }] });
    expectWeather((await client.models.generateContent({ model, contents, config })).text);
  },
  structured: async () => {
    const config = { responseMimeType: "application/json", responseSchema: oslo };
    expect(JSON.parse((await client.models.generateContent({ model, contents: ASK, config })).text), OSLO);
  },
  embeddings: async () => {
    const found = await client.models.embedContent({ model: findEmbeddingModel(model), contents: ["a", "bc"] });
    expect(found.embeddings.map((each) => each.values), [[0.25, -0.5, 1], [0.25, -0.5, 2]]);
  },
}));
