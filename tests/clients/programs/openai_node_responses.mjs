// An agent with the official SDK for Node over the Responses API.
// URL MODEL TASK whole|stream items|chain; with a chain, each request has what is new only and
// names the response before.
import { spawnSync } from "node:child_process";
import OpenAI from "openai";

const [url, model, task, mode, history] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: "sk-test", timeout: 60_000 });

function runStep({ command }) {
  const done = spawnSync(command, { shell: true, encoding: "utf8" });
  return done.stdout + done.stderr;
}

const request = {
  model,
  instructions: "You work in a shell, step by step.",
  tools: [
    {
      type: "function",
      name: "run_step",
      description: "Run a command in a shell and return what it prints.",
      parameters: {
        type: "object",
        properties: { command: { type: "string" } },
        required: ["command"],
        additionalProperties: false,
      },
      strict: true,
    },
  ],
  input: [{ role: "user", content: task }],
};

async function ask() {
  if (mode === "stream") return await client.responses.stream(request).finalResponse();
  return await client.responses.create(request);
}

let answer = await ask();
for (;;) {
  const calls = answer.output.filter((item) => item.type === "function_call");
  if (calls.length === 0) break;
  const outputs = calls.map((call) => ({
    type: "function_call_output",
    call_id: call.call_id,
    output: runStep(JSON.parse(call.arguments)),
  }));
  if (history === "chain") {
    request.previous_response_id = answer.id;
    request.input = outputs;
  } else {
    request.input = [...request.input, ...answer.output, ...outputs];
  }
  answer = await ask();
}
console.log(answer.output_text);
