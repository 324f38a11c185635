// An agent with the AI SDK and its provider for compatible servers: URL MODEL TASK whole|stream.
import { spawnSync } from "node:child_process";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [url, model, task, mode] = process.argv.slice(2);
const provider = createOpenAICompatible({ name: "foldgate", baseURL: url, apiKey: "sk-test" });

const request = {
  model: provider(model),
  system: "You work in a shell, step by step.",
  prompt: task,
  stopWhen: stepCountIs(500),
  tools: {
    run_step: tool({
      description: "Run a command in a shell and return what it prints.",
      inputSchema: z.object({ command: z.string() }),
      execute: async ({ command }) => {
        const done = spawnSync(command, { shell: true, encoding: "utf8" });
        return done.stdout + done.stderr;
      },
    }),
  },
};

if (mode === "stream") {
  const onError = ({ error }) => {
    console.error(error);
    process.exitCode = 1;
  };
  console.log(await streamText({ ...request, onError }).text);
} else {
  console.log((await generateText(request)).text);
}
