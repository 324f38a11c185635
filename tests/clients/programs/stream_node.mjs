// Reads one streamed answer: URL MODEL sdk|ai|compatible chat|responses FILE.
// The file holds the conversation. Prints the text, or the error that it ended with, as JSON.
import { readFileSync } from "node:fs";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { streamText } from "ai";
import OpenAI from "openai";

const [url, model, library, api, file] = process.argv.slice(2);
const messages = JSON.parse(readFileSync(file, "utf8"));

async function sdk() {
  const client = new OpenAI({ baseURL: url, apiKey: "sk-test", timeout: 60_000, maxRetries: 2 });
  let text = "";
  if (api === "chat") {
    const stream = await client.chat.completions.create({ model, messages, stream: true });
    for await (const chunk of stream) text += chunk.choices[0].delta.content ?? "";
  } else {
    const stream = await client.responses.create({ model, input: messages, stream: true });
    for await (const event of stream) {
      if (event.type === "response.output_text.delta") text += event.delta;
    }
  }
  return text;
}

async function ai() {
  const provider =
    library === "compatible"
      ? createOpenAICompatible({ name: "foldgate", baseURL: url, apiKey: "sk-test" })(model)
      : createOpenAI({ baseURL: url, apiKey: "sk-test" })[api](model);
  let text = "";
  const system = messages[0].content;
  const result = streamText({
    model: provider,
    system,
    messages: messages.slice(1),
    onError: () => {},
  });
  for await (const part of result.fullStream) {
    if (part.type === "text-delta") text += part.text;
    if (part.type === "error") throw part.error;
  }
  return text;
}

try {
  const text = await (library === "sdk" ? sdk() : ai());
  console.log(JSON.stringify({ text, error: null }));
} catch (error) {
  const message = error.message ?? JSON.stringify(error);
  console.log(JSON.stringify({ text: "", error: message }));
}
