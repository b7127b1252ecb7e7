// Runs before the first paint, so that a chosen colour scheme does not flash.
"use strict";
{
  let chosen = null;
  try {
    chosen = localStorage.getItem("headrace-theme");
  } catch {
    // The browser keeps nothing for this site.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
