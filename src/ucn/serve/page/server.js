// Client of the REST interface; an error response becomes an Error with its message.

let session = null;

// A busy server says when to try again; after three attempts the user is told.
async function request(path, options = {}, attempt = 0) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The server does not respond. Is `ucn serve` still running?");
  }
  if (response.ok) return response;
  if (response.status === 503 && attempt < 2) {
    const seconds = Math.min(Number(response.headers.get("Retry-After")) || 5, 10);
    await new Promise((resume) => { setTimeout(resume, 1000 * seconds); });
    return request(path, options, attempt + 1);
  }
  const problem = await response.json().catch(() => ({}));
  const error = new Error(problem.detail || `The server responded with status ${response.status}.`);
  error.status = response.status;
  throw error;
}

function post(path, value) {
  const headers = { "Content-Type": "application/json" };
  return request(path, { method: "POST", headers, body: JSON.stringify(value) });
}

export async function readStatus() {
  return (await request("/api/status")).json();
}

export async function requestMatches(body) {
  return (await post("/api/match", body)).json();
}

export async function requestCsv(body) {
  return (await post("/api/match.csv", body)).text();
}

// After a session has expired, an upload opens another one.
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
