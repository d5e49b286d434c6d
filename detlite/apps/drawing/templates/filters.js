"use strict";
// A form with data-for="ID" shows the elements within #ID that match all its fields: a select must
// equal the data attribute of the same name, "from" and "to" limit the score.
for (const form of document.querySelectorAll("form[data-for]")) {
  const elements = [...document.querySelectorAll(`#${form.dataset.for} > [data-shown]`)];
  const count = form.querySelector("[data-count]");
  const apply = () => {
    const fields = Object.fromEntries(new FormData(form));
    let shown = 0;
    for (const element of elements) {
      const matches = Object.entries(fields).every(([name, value]) => {
        if (name === "from") return Number(element.dataset.score) >= Number(value);
        if (name === "to") return Number(element.dataset.score) <= Number(value);
        return value === "" || element.dataset[name] === value;
      });
      element.hidden = !matches;
      shown += matches ? 1 : 0;
    }
    for (const input of form.querySelectorAll("input[type=range]")) {
      input.parentElement.querySelector("output").textContent = Number(input.value).toFixed(2);
    }
    if (count) count.textContent = `${shown} of ${elements.length} shown`;
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  apply();
}
