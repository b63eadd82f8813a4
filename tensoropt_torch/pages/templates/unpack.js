// Unpacks the library that draws (gzip, base64), then runs the scripts that need it.
"use strict";
async function unpacked(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}
function run(text) {
  const script = document.createElement("script");
  script.textContent = text;
  document.body.append(script);
}
unpacked(document.getElementById("library").textContent)
  .then((library) => {
    run(library);
    for (const script of document.querySelectorAll("[data-after-library]")) run(script.textContent);
    document.documentElement.classList.add("drawn");
  })
  .catch((error) => console.error(`charts are not drawn: ${error}; all figures are in the tables`));
