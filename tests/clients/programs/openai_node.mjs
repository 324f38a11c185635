// An agent with the official SDK for Node, which runs the tool loop: URL MODEL TASK whole|stream.
import { spawnSync } from "node:child_process";
import OpenAI from "openai";

const [url, model, task, mode] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: "sk-test", timeout: 60_000 });

function runStep({ command }) {
  const done = spawnSync(command, { shell: true, encoding: "utf8" });
  return done.stdout + done.stderr;
}

const runner = client.chat.completions.runTools(
  {
    model,
    stream: mode === "stream",
    messages: [
      { role: "system", content: "You work in a shell, step by step." },
      { role: "user", content: task },
    ],
    tools: [
      {
        type: "function",
        function: {
          name: "run_step",
          description: "Run a command in a shell and return what it prints.",
          parameters: {
            type: "object",
            properties: { command: { type: "string" } },
            required: ["command"],
          },
          parse: JSON.parse,
          function: runStep,
        },
      },
    ],
  },
  { maxChatCompletions: 500 },
);
console.log(await runner.finalContent());
