// Unpacks what is packed (gzip, base64), then runs the scripts that need it, in their order.
"use strict";
async function unpack(element) {
  const bytes = Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  element.textContent = await new Response(stream).text();
}
function run({ textContent }) {
  const script = document.createElement("script");
  script.textContent = textContent;
  document.body.append(script);
}
Promise.all(Array.from(document.querySelectorAll("[data-packed]"), unpack))
  .then(() => {
    document.querySelectorAll("[data-run]").forEach(run);
    document.documentElement.classList.add("drawn");
  })
  .catch((error) => console.error(`charts are not drawn: ${error}; all figures are in the tables`));
