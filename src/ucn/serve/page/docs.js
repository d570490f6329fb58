// Shows the OpenAPI document of this server, without external scripts.

const get = (id) => document.getElementById(id);

function make(name, text = "", className = "") {
  const element = document.createElement(name);
  element.textContent = text;
  if (className) element.className = className;
  return element;
}

function formatType(schema) {
  if (!schema) return "anything";
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.anyOf) return schema.anyOf.map(formatType).join(" or ");
  if (schema.prefixItems) return `(${schema.prefixItems.map(formatType).join(", ")})`;
  if (schema.type === "array") return `list of ${formatType(schema.items)}`;
  return schema.format || schema.contentMediaType || schema.type || "anything";
}

function tabulate(rows) {
  const body = document.createElement("tbody");
  for (const cells of rows) {
    const row = document.createElement("tr");
    for (const text of cells) row.append(make("td", text));
    body.append(row);
  }
  const table = document.createElement("table");
  table.append(body);
  return table;
}

function fillIn(schemas, schema) {
  if (schema?.$ref) {
    const target = schemas[schema.$ref.split("/").at(-1)];
    const values = Object.entries(target.properties || {}).filter(([, property]) => property.examples);
    return Object.fromEntries(values.map(([name, property]) => [name, property.examples[0]]));
  }
  return null;
}

function writeCommand(method, path, operation, schemas) {
  const address = location.origin + path.replace("{session}", "SESSION").replace("{image}", "NAME");
  const parts = ["curl"];
  if (method !== "get") parts.push(`-X ${method.toUpperCase()}`);
  const content = operation.requestBody?.content || {};
  if (content["application/json"]) {
    const value = JSON.stringify(fillIn(schemas, content["application/json"].schema));
    parts.push("-H 'Content-Type: application/json'", `-d '${value}'`);
  } else if (Object.keys(content).length) {
    parts.push("-H 'Content-Type: application/octet-stream'", "--data-binary @photo.jpg");
  }
  if (path.includes("/images/")) parts.push("-o image.jpg");
  return [...parts, address].join(" ");
}

const isSuccess = ({ status }) => status.startsWith("2");

function showOperation(method, path, operation, schemas) {
  const article = make("article", "", "operation");
  const heading = document.createElement("h3");
  heading.append(make("span", method.toUpperCase(), "method"), make("code", path));
  const responses = Object.entries(operation.responses).map(([status, response]) => {
    const content = Object.entries(response.content || {});
    const kinds = content.map(([kind, { schema }]) => (kind === "application/json" ? formatType(schema) : kind));
    return { status, text: response.description, kinds: kinds.join(", ") };
  });
  const [succeeded, failed] = [responses.filter(isSuccess), responses.filter((each) => !isSuccess(each))];
  const errors = failed.map(({ status, text }) => [status, text]);
  const details = document.createElement("details");
  details.append(make("summary", `Errors: ${failed.map(({ status }) => status).join(", ")}`), tabulate(errors));
  article.append(
    heading,
    make("p", operation.description || operation.summary || ""),
    make("pre", writeCommand(method, path, operation, schemas)),
    make("p", succeeded.map(({ status, kinds }) => `Response ${status}${kinds && `: ${kinds}`}`).join("; ")),
    details,
  );
  return article;
}

function showSchema(name, schema) {
  const article = make("article", "", "schema");
  const heading = make("h3", name);
  heading.id = name;
  const required = new Set(schema.required || []);
  const rows = Object.entries(schema.properties || {}).map(([key, property]) => [
    key, formatType(property), required.has(key) ? "required" : "", property.description || "",
  ]);
  article.append(heading, make("p", schema.description || ""), tabulate(rows));
  return article;
}

async function start() {
  const openapi = await (await fetch("/openapi.json")).json();
  get("summary").textContent = `${openapi.info.summary} Version ${openapi.info.version}.`;
  get("description").textContent = openapi.info.description;
  const { schemas } = openapi.components;
  get("operations").replaceChildren(
    ...Object.entries(openapi.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, operation]) => showOperation(method, path, operation, schemas))),
  );
  get("schemas").replaceChildren(...Object.entries(schemas).map(([name, schema]) => showSchema(name, schema)));
}

start().catch(() => { get("operations").textContent = "The server does not respond."; });
