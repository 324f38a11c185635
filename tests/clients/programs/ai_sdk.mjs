// An agent with the AI SDK: URL MODEL TASK whole|stream chat|responses.
// The first API by its provider for compatible servers, the second by the one for OpenAI.
import { spawnSync } from "node:child_process";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [url, model, task, mode, api] = process.argv.slice(2);
const create = { chat: createOpenAICompatible, responses: createOpenAI }[api];
const provider = create({ name: "foldgate", baseURL: url, apiKey: "sk-test" });

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
