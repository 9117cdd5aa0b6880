//! The async-openai crate: chat, Responses, embeddings. The lines that it prints are those of steps.py.
use async_openai::config::OpenAIConfig;
use async_openai::types::chat::CreateChatCompletionRequest;
use async_openai::types::embeddings::CreateEmbeddingRequest;
use async_openai::types::responses::{CreateResponse, OutputItem, ResponseStreamEvent};
use async_openai::Client;
use futures::StreamExt;
use serde_json::{from_str, from_value, json, Value};
use std::env::var;
use std::error::Error;

type Outcome = Result<(), Box<dyn Error>>;

const HELLO: &str = "Hello from the provider";
const ASK: &str = "How is the weather in Oslo?";
const AFTER_TOOL: &str = "The tool returned: rain in Oslo";
const STEPS: [&str; 6] = ["chat", "stream", "tools", "structured", "embeddings", "responses tools, streamed"];

fn expect(found: Value, wanted: Value) -> Outcome {
    if found == wanted {
        return Ok(());
    }
    Err(format!("expected {wanted}, got {found}").into())
}

fn weather() -> Value {
    json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": false})
}

async fn run(client: &Client<OpenAIConfig>, model: &str, step: &str) -> Outcome {
    match step {
        "chat" => chat(client, model).await,
        "stream" => stream(client, model).await,
        "tools" => tools(client, model).await,
        "structured" => structured(client, model).await,
        "embeddings" => embeddings(client, model).await,
        _ => responses(client, model).await,
    }
}

async fn chat(client: &Client<OpenAIConfig>, model: &str) -> Outcome {
    let asked = json!({"model": model, "messages": [{"role": "user", "content": "Hello"}]});
    let answer = client.chat().create(from_value::<CreateChatCompletionRequest>(asked)?).await?;
    expect(json!(answer.choices[0].message.content), json!(HELLO))
}

async fn stream(client: &Client<OpenAIConfig>, model: &str) -> Outcome {
    let asked = json!({"model": model, "stream": true, "messages": [{"role": "user", "content": "Hello"}]});
    let mut events = client.chat().create_stream(from_value(asked)?).await?;
    let mut text = String::new();
    while let Some(event) = events.next().await {
        for choice in event?.choices {
            text += choice.delta.content.as_deref().unwrap_or("");
        }
    }
    expect(json!(text), json!(HELLO))
}

async fn tools(client: &Client<OpenAIConfig>, model: &str) -> Outcome {
    let offered = json!([{"type": "function", "function": {"name": "get_weather", "parameters": weather()}}]);
    let question = json!({"role": "user", "content": ASK});
    let asked = json!({"model": model, "messages": [question], "tools": offered});
    let first = client.chat().create(from_value(asked)?).await?;
    let message = serde_json::to_value(&first.choices[0].message)?;
    let call = &message["tool_calls"][0];
    expect(from_str(call["function"]["arguments"].as_str().unwrap_or("null"))?, json!({"city": "Oslo"}))?;
    let result = json!({"role": "tool", "tool_call_id": call["id"], "content": "rain in Oslo"});
    let asked = json!({"model": model, "messages": [question, message, result], "tools": offered});
    let second = client.chat().create(from_value(asked)?).await?;
    expect(json!(second.choices[0].message.content), json!(AFTER_TOOL))
}

async fn structured(client: &Client<OpenAIConfig>, model: &str) -> Outcome {
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
        "required": ["name", "people"],
        "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": true}});
    let asked = json!({"model": model, "messages": [{"role": "user", "content": ASK}], "response_format": format});
    let answer = client.chat().create(from_value(asked)?).await?;
    let content = answer.choices[0].message.content.clone().unwrap_or_default();
    expect(from_str(&content)?, json!({"name": "Oslo", "people": 700000}))
}

async fn embeddings(client: &Client<OpenAIConfig>, model: &str) -> Outcome {
    let models: Value = from_str(&var("GATEWAY_EMBEDDING_MODELS")?)?;
    let asked = json!({"model": models[model], "input": ["a", "bc"]});
    let found = client.embeddings().create(from_value::<CreateEmbeddingRequest>(asked)?).await?;
    let vectors: Vec<_> = found.data.iter().map(|each| each.embedding.clone()).collect();
    expect(json!(vectors), json!([[0.25, -0.5, 1.0], [0.25, -0.5, 2.0]]))
}

async fn responses(client: &Client<OpenAIConfig>, model: &str) -> Outcome {
    let offered = json!([{"type": "function", "name": "get_weather", "parameters": weather(), "strict": true}]);
    let asked = json!({"model": model, "input": ASK, "tools": offered});
    let first = client.responses().create(from_value::<CreateResponse>(asked)?).await?;
    let mut results = Vec::new();
    for item in &first.output {
        if let OutputItem::FunctionCall(call) = item {
            results.push(json!({"type": "function_call_output", "call_id": call.call_id, "output": "rain in Oslo"}));
        }
    }
    let asked = json!({
        "model": model, "stream": true, "input": results, "tools": offered, "previous_response_id": first.id,
    });
    let mut events = client.responses().create_stream(from_value(asked)?).await?;
    let mut text = String::new();
    while let Some(event) = events.next().await {
        if let ResponseStreamEvent::ResponseOutputTextDelta(delta) = event? {
            text += &delta.delta;
        }
    }
    expect(json!(text), json!(AFTER_TOOL))
}

#[tokio::main]
async fn main() -> Outcome {
    let config = OpenAIConfig::new().with_api_base(format!("{}/v1", var("GATEWAY_URL")?)).with_api_key(var("GATEWAY_KEY")?);
    let client = Client::with_config(config);
    let embedding_models: Value = from_str(&var("GATEWAY_EMBEDDING_MODELS")?)?;
    for model in var("GATEWAY_MODELS")?.split(',') {
        for step in STEPS {
            let (mut state, mut reason) = ("passed", String::new());
            if step == "embeddings" && embedding_models[model].is_null() {
                (state, reason) = ("skipped", "the provider's format has no embeddings".into());
            } else if let Err(error) = run(&client, model, step).await {
                (state, reason) = ("failed", error.to_string());
            }
            println!("{}", json!({"model": model, "step": step, "state": state, "reason": reason}));
        }
    }
    Ok(())
}
