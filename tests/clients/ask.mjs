// One question through one client: node ask.mjs CLIENT BASE MODEL. Prints {"text": ...} or {"error": ...} as JSON.
const [client, base, model] = process.argv.slice(2);
const v1 = `${base}/v1`;
const prompt = "hi";
const messages = [{ role: "user", content: prompt }];
const key = "k";

async function openaiOf(name) {
  const { default: OpenAI } = await import(name);
  return new OpenAI({ baseURL: v1, apiKey: key, maxRetries: 0 });
}

async function chatStream(name) {
  const openai = await openaiOf(name);
  let text = "";
  for await (const part of await openai.chat.completions.create({ model, messages, max_tokens: 3, stream: true })) {
    text += part.choices[0]?.delta?.content ?? "";
  }
  return text;
}

async function chatPlain(name) {
  const openai = await openaiOf(name);
  return (await openai.chat.completions.create({ model, messages, max_tokens: 3 })).choices[0].message.content;
}

async function responsesStream(name) {
  const openai = await openaiOf(name);
  let text = "";
  for await (const event of await openai.responses.create({ model, input: prompt, max_output_tokens: 3, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  return text;
}

async function anthropicStream() {
  const { default: Anthropic } = await import("@anthropic-ai/sdk");
  const anthropic = new Anthropic({ baseURL: base, apiKey: key, maxRetries: 0 });
  return await anthropic.messages.stream({ model, messages, max_tokens: 3 }).finalText();
}

async function ai(module, provider, plain = false) {
  const { streamText, generateText } = await import(module);
  const ask = { model: await provider(), prompt, maxOutputTokens: 3, maxRetries: 0 };
  if (plain) return (await generateText(ask)).text;
  let text = "";
  let failure;
  for await (const part of streamText({ ...ask, onError: () => {} }).fullStream) {
    if (part.type === "text-delta") text += part.text ?? part.delta ?? "";
    if (part.type === "error") failure = part.error;
  }
  if (failure !== undefined) throw failure instanceof Error ? failure : new Error(JSON.stringify(failure));
  return text;
}

async function compatible(module) {
  const { createOpenAICompatible } = await import(module);
  return createOpenAICompatible({ name: "headway", baseURL: v1, apiKey: key })(model);
}

const clients = {
  "openai-chat": () => chatStream("openai"),
  "openai-plain": () => chatPlain("openai"),
  "openai-responses": () => responsesStream("openai"),
  "openai6-chat": () => chatStream("openai-6"),
  "openai6-plain": () => chatPlain("openai-6"),
  "anthropic-messages": anthropicStream,
  "ai-compatible": () => ai("ai", () => compatible("@ai-sdk/openai-compatible")),
  "ai-plain": () => ai("ai", () => compatible("@ai-sdk/openai-compatible"), true),
  "ai6-compatible": () => ai("ai-6", () => compatible("@ai-sdk/openai-compatible-2")),
  "ai-responses": () =>
    ai("ai", async () => (await import("@ai-sdk/openai")).createOpenAI({ baseURL: v1, apiKey: key }).responses(model)),
  "ai-anthropic": () =>
    ai("ai", async () => (await import("@ai-sdk/anthropic")).createAnthropic({ baseURL: v1, apiKey: key })(model)),
};

try {
  console.log(JSON.stringify({ text: await clients[client]() }));
} catch (error) {
  const chain = [];
  for (let e = error; e && chain.length < 5; e = e.cause) chain.push(`${e.name ?? ""}: ${e.message ?? String(e)}`);
  console.log(JSON.stringify({ error: chain.join(" <- ") }));
}
