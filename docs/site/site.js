/** Make what Material for MkDocs adds to a page reachable with the keyboard, and tell its landmarks apart. */
const improve = () => {
  for (const buttons of document.querySelectorAll("nav.md-code__nav:not([role])")) buttons.role = "none";
  for (const region of document.querySelectorAll(".md-typeset__scrollwrap, pre > code")) {
    if (region.scrollWidth > region.clientWidth) region.tabIndex = 0;
    else region.removeAttribute("tabindex");
  }
};

new MutationObserver(improve).observe(document.body, { childList: true, subtree: true });
addEventListener("resize", improve);
improve();
