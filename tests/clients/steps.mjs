// What a client program does for its runner (scripts/run_clients.py): its steps, one JSON line for each; see steps.py.
export const URL = process.env.GATEWAY_URL;
export const KEY = process.env.GATEWAY_KEY;
export const CONVENTION = process.argv[2];
export const HELLO = "Hello from the provider";
export const ASK = "How is the weather in Oslo?";
export const WEATHER = "rain in Oslo";
export const OSLO = { name: "Oslo", people: 700000 };
export const CITY_SCHEMA = {
  type: "object",
  properties: { name: { type: "string" }, people: { type: "integer" } },
  required: ["name", "people"],
  additionalProperties: false,
};
export const WEATHER_SCHEMA = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};

const EMBEDDING_MODELS = JSON.parse(process.env.GATEWAY_EMBEDDING_MODELS);

class Skip extends Error {}

export function findEmbeddingModel(model) {
  if (!(model in EMBEDDING_MODELS)) throw new Skip("the provider's format has no embeddings");
  return EMBEDDING_MODELS[model];
}

export function skip(reason) {
  throw new Skip(reason);
}

export function expect(found, wanted) {
  const [left, right] = [JSON.stringify(found), JSON.stringify(wanted)];
  if (left !== right) throw new Error(`expected ${right}, got ${left}`);
}

export function expectWeather(found) {
  if (!found?.startsWith("The tool returned: ") || !found.includes(WEATHER)) {
    throw new Error(`expected the tool's result, got ${JSON.stringify(found)}`);
  }
}

export async function run(listSteps) {
  for (const model of process.env.GATEWAY_MODELS.split(",")) {
    for (const [step, work] of Object.entries(listSteps(model))) {
      const line = { model, step, state: "passed", reason: "" };
      try {
        await work();
      } catch (error) {
        line.state = error instanceof Skip ? "skipped" : "failed";
        line.reason = error instanceof Skip ? error.message : `${error.name}: ${error.message}`;
        if (line.state === "failed") console.error(error);
      }
      console.log(JSON.stringify(line));
    }
  }
}
