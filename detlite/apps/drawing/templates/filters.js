"use strict";
// A form with data-for="ID" shows those pictures within #ID that agree with all of its fields: a
// select with a picture's data of the same name, "from" and "to" with its score.
for (const form of document.querySelectorAll("form[data-for]")) {
  const figures = [...document.querySelectorAll(`#${form.dataset.for} > [data-shown]`)];
  const count = form.querySelector("[data-count]");
  const apply = () => {
    const wanted = Object.fromEntries(new FormData(form));
    let shown = 0;
    for (const figure of figures) {
      const fits = Object.entries(wanted).every(([name, value]) => {
        if (name === "from") return Number(figure.dataset.score) >= Number(value);
        if (name === "to") return Number(figure.dataset.score) <= Number(value);
        return value === "" || figure.dataset[name] === value;
      });
      figure.hidden = !fits;
      shown += fits ? 1 : 0;
    }
    for (const input of form.querySelectorAll("input[type=range]")) {
      input.parentElement.querySelector("output").textContent = Number(input.value).toFixed(2);
    }
    if (count) count.textContent = `${shown} of ${figures.length} shown`;
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  apply();
}
