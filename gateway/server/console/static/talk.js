// One streamed answer of a chat model: its words as they come, and what is known of the call.
import { ask, Fault, readEvents } from "./api.js";
import { t } from "./language.js";

// What becomes known of a call, whether or not it comes to its end.
export function newTrace() {
  return { requestId: null, firstMs: null, totalMs: null, usage: null, finish: null, calls: [] };
}

// A call of a tool comes in pieces, of which the first has its id and name.
function takeCalls(calls, pieces) {
  for (const piece of pieces) {
    const place = Number.isInteger(piece?.index) && piece.index >= 0 && piece.index < 100 ? piece.index : 0;
    const known = calls[place] ??= { id: "", name: "", arguments: "" };
    known.id ||= textOf(piece?.id);
    known.name ||= textOf(piece?.function?.name);
    known.arguments += textOf(piece?.function?.arguments);
  }
}

const textOf = (value) => (typeof value === "string" ? value : "");

// `hear.text` and `hear.reasoning` get the pieces. Throws a Fault, or an AbortError where `signal` says so.
export async function talk(body, key, hear, trace, signal) {
  const began = performance.now();
  const wanted = { ...body, stream: true, stream_options: { include_usage: true } };
  try {
    const response = await ask("/v1/chat/completions", wanted, key, signal);
    trace.requestId = response.headers.get("X-Request-Id");
    for await (const event of readEvents(response)) {
      if (event?.error) throw new Fault(response.status, event.error);
      if (event?.usage) trace.usage = event.usage;
      const choice = event?.choices?.[0];
      const text = textOf(choice?.delta?.content);
      const reasoning = textOf(choice?.delta?.reasoning_content) || textOf(choice?.delta?.reasoning);
      if (choice?.finish_reason) trace.finish = choice.finish_reason;
      if (Array.isArray(choice?.delta?.tool_calls)) takeCalls(trace.calls, choice.delta.tool_calls);
      if (text || reasoning) trace.firstMs ??= performance.now() - began;
      if (reasoning) hear.reasoning?.(reasoning);
      if (text) hear.text(text);
    }
  } catch (error) {
    if (error instanceof Fault || error.name === "AbortError") throw error;
    throw new Fault(0, { message: t("The answer was interrupted") });
  } finally {
    trace.totalMs = performance.now() - began;
  }
}
