// The openai-go package: chat, Responses, embeddings. The lines that it prints are those of steps.py.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
)

const (
	hello = "Hello from the provider"
	ask   = "How is the weather in Oslo?"
)

var (
	ctx     = context.Background()
	client  = openai.NewClient(option.WithBaseURL(os.Getenv("GATEWAY_URL")+"/v1"), option.WithAPIKey(os.Getenv("GATEWAY_KEY")), option.WithMaxRetries(0))
	errSkip = errors.New("the provider's format has no embeddings")
	weather = openai.FunctionParameters{
		"type":                 "object",
		"properties":           map[string]any{"city": map[string]string{"type": "string"}},
		"required":             []string{"city"},
		"additionalProperties": false,
	}
	city = map[string]any{
		"type":                 "object",
		"properties":           map[string]any{"name": map[string]string{"type": "string"}, "people": map[string]string{"type": "integer"}},
		"required":             []string{"name", "people"},
		"additionalProperties": false,
	}
)

func expect(found, wanted any) error {
	if fmt.Sprint(found) != fmt.Sprint(wanted) {
		return fmt.Errorf("expected %v, got %v", wanted, found)
	}
	return nil
}

func chat(model string) error {
	answer, err := client.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{
		Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hello")},
	})
	if err != nil {
		return err
	}
	return expect(answer.Choices[0].Message.Content, hello)
}

func stream(model string) error {
	events := client.Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{
		Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hello")},
	})
	var whole openai.ChatCompletionAccumulator
	for events.Next() {
		whole.AddChunk(events.Current())
	}
	if events.Err() != nil {
		return events.Err()
	}
	return expect(whole.Choices[0].Message.Content, hello)
}

func tools(model string) error {
	asked := openai.ChatCompletionNewParams{
		Model:    model,
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(ask)},
		Tools: []openai.ChatCompletionToolUnionParam{
			openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "get_weather", Parameters: weather}),
		},
	}
	first, err := client.Chat.Completions.New(ctx, asked)
	if err != nil {
		return err
	}
	message := first.Choices[0].Message
	if len(message.ToolCalls) != 1 {
		return fmt.Errorf("expected a call, got %s", message.RawJSON())
	}
	asked.Messages = append(asked.Messages, message.ToParam(), openai.ToolMessage("rain in Oslo", message.ToolCalls[0].ID))
	second, err := client.Chat.Completions.New(ctx, asked)
	if err != nil {
		return err
	}
	return expect(second.Choices[0].Message.Content, "The tool returned: rain in Oslo")
}

func structured(model string) error {
	schema := openai.ResponseFormatJSONSchemaJSONSchemaParam{Name: "city", Schema: city, Strict: openai.Bool(true)}
	answer, err := client.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{
		Model:    model,
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(ask)},
		ResponseFormat: openai.ChatCompletionNewParamsResponseFormatUnion{
			OfJSONSchema: &openai.ResponseFormatJSONSchemaParam{JSONSchema: schema},
		},
	})
	if err != nil {
		return err
	}
	var found struct {
		Name   string
		People int
	}
	if err := json.Unmarshal([]byte(answer.Choices[0].Message.Content), &found); err != nil {
		return err
	}
	return expect(found, "{Oslo 700000}")
}

func embeddings(model string) error {
	var models map[string]string
	if err := json.Unmarshal([]byte(os.Getenv("GATEWAY_EMBEDDING_MODELS")), &models); err != nil {
		return err
	}
	if models[model] == "" {
		return errSkip
	}
	found, err := client.Embeddings.New(ctx, openai.EmbeddingNewParams{
		Model: models[model], Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a", "bc"}},
	})
	if err != nil {
		return err
	}
	return expect([][]float64{found.Data[0].Embedding, found.Data[1].Embedding}, "[[0.25 -0.5 1] [0.25 -0.5 2]]")
}

func respond(model string) error {
	asked := responses.ResponseNewParams{
		Model: model,
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(ask)},
		Tools: []responses.ToolUnionParam{{OfFunction: &responses.FunctionToolParam{
			Name: "get_weather", Parameters: weather, Strict: openai.Bool(true),
		}}},
	}
	first, err := client.Responses.New(ctx, asked)
	if err != nil {
		return err
	}
	for _, item := range first.Output {
		if item.Type == "function_call" {
			asked.PreviousResponseID = openai.String(first.ID)
			result := responses.ResponseInputItemParamOfFunctionCallOutput("rain in Oslo")
			result.OfFunctionCallOutput.CallID = openai.String(item.CallID)
			asked.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: responses.ResponseInputParam{result}}
		}
	}
	events := client.Responses.NewStreaming(ctx, asked)
	text := ""
	for events.Next() {
		if events.Current().Type == "response.output_text.delta" {
			text += events.Current().Delta
		}
	}
	if events.Err() != nil {
		return events.Err()
	}
	return expect(text, "The tool returned: rain in Oslo")
}

func main() {
	steps := []struct {
		name string
		work func(string) error
	}{
		{"chat", chat}, {"stream", stream}, {"tools", tools}, {"structured", structured},
		{"embeddings", embeddings}, {"responses tools, streamed", respond},
	}
	for _, model := range strings.Split(os.Getenv("GATEWAY_MODELS"), ",") {
		for _, step := range steps {
			state, reason := "passed", ""
			if err := step.work(model); err != nil {
				state, reason = "failed", err.Error()
				if errors.Is(err, errSkip) {
					state = "skipped"
				}
			}
			line, _ := json.Marshal(map[string]string{"model": model, "step": step.name, "state": state, "reason": reason})
			fmt.Println(string(line))
		}
	}
}
