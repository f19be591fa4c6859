// How the search of the site ranks: as Sphinx does by itself, but for two things. Pages that solve a
// problem come before others that have the same words, and pages about the project come last, because
// somebody who searches wants to do something. An entry of the index also gets the title of its section,
// where Sphinx shows that of the page alone.
var Scorer = {
  last: [
    "changelog", "decisions", "speed", "versions",
  ],
  score: (result) => {
    const [page, title, anchor, , score, , kind] = result;
    if (kind === "index" && anchor) result[1] = `${title} > ${Scorer.section(page, anchor)}`;
    if (Scorer.last.includes(page) || page.startsWith("maintain/")) return score - 1000;
    if (page.startsWith("cookbook/") || page === "troubleshooting") return score + 2;
    return page.startsWith("guides/") ? score + 1 : score;
  },
  section: (page, anchor) => {
    const { alltitles, docnames } = Search._index;
    const isThere = ([file, id]) => docnames[file] === page && `#${id}` === anchor;
    return Object.keys(alltitles).find((title) => alltitles[title].some(isThere));
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
