// The REST interface of this server; what it refuses becomes an Error with its words.

let session = null;

async function request(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("The server does not answer. Is `ucn serve` still running?");
  }
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  const error = new Error(problem.detail || `The server answered ${answer.status}.`);
  error.status = answer.status;
  throw error;
}

function post(path, value) {
  const headers = { "Content-Type": "application/json" };
  return request(path, { method: "POST", headers, body: JSON.stringify(value) });
}

export async function readStatus() {
  return (await request("/api/status")).json();
}

export async function ask(question) {
  return (await post("/api/match", question)).json();
}

export async function askForTable(question) {
  return (await post("/api/match.csv", question)).text();
}

// Sessions expire; an upload then opens another one.
export async function sendImage(file) {
  for (let attempt = 0; ; attempt += 1) {
    if (session === null) {
      session = (await (await request("/api/sessions", { method: "POST" })).json()).session;
    }
    const headers = { "Content-Type": file.type.startsWith("image/") ? file.type : "application/octet-stream" };
    try {
      const path = `/api/sessions/${session}/images`;
      return await (await request(path, { method: "POST", headers, body: file })).json();
    } catch (error) {
      if (error.status !== 404 || attempt > 0) throw error;
      session = null;
    }
  }
}

export function leave() {
  if (session !== null) fetch(`/api/sessions/${session}`, { method: "DELETE", keepalive: true });
  session = null;
}
