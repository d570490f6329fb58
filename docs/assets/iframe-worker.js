// Browsers start no worker for a page that was opened from a disk. There the search runs in a hidden frame instead,
// which looks to the page like a worker, and to the worker's script like the place it expects to run in.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html><title>search</title>";
      this.inside = new Promise((resolve, reject) => {
        frame.onload = () => {
          const inside = frame.contentWindow;
          const load = (source) =>
            new Promise((done, fail) => {
              const script = inside.document.createElement("script");
              script.src = source;
              script.onload = done;
              script.onerror = fail;
              inside.document.head.append(script);
            });
          inside.importScripts = (...sources) => sources.reduce((chain, source) => chain.then(() => load(source)), Promise.resolve());
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          load(address).then(() => resolve(inside), reject);
        };
      });
      document.body.append(frame);
      this.frame = frame;
    }

    postMessage(data) {
      this.inside.then((inside) => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
