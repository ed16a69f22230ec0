// Mends of the theme for the keyboard and for screen readers that a style sheet cannot make.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  // A table wider than the screen scrolls in its box: the box must be reachable without a mouse.
  for (const box of document.querySelectorAll(".pst-scrollable-table-container")) {
    box.tabIndex = 0;
  }
  // The bar's links stand in a landmark without a name, beside that of the page's contents.
  for (const list of document.querySelectorAll(".bd-navbar-elements")) {
    list.closest("nav").setAttribute("aria-label", "Site");
  }
});
