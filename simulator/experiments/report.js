// Draws every figure of the page; figures over time share their zoom.
const plots = [...document.querySelectorAll("script.plot-data")].map((source) => {
  const div = document.getElementById(source.dataset.for);
  const { data, layout } = JSON.parse(source.textContent);
  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: "hover",
    showSendToCloud: false, // plotly 7 offers by default to upload the chart
    plotlyServerURL: "",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };
  Plotly.newPlot(div, data, layout, config);
  return div;
});
const timed = plots.filter((div) => div.layout.meta && div.layout.meta.time_axis);
const full = new Map(timed.map((div) => [div, [...div.layout.xaxis.range]]));
let busy = false;
timed.forEach((div) => div.on("plotly_relayout", (change) => {
  if (busy || !Object.keys(change).some((key) => /^xaxis\d*\.(range|autorange)/.test(key))) return;
  const reset = Object.keys(change).some((key) => /^xaxis\d*\.autorange/.test(key));
  const axis = Object.keys(div.layout).find((key) => /^xaxis\d*$/.test(key));
  const range = reset ? full.get(div) : [...div.layout[axis].range];
  busy = true;
  Promise.all(timed.filter((other) => reset || other !== div).map((other) => {
    const axes = Object.keys(other.layout).filter((key) => /^xaxis\d*$/.test(key));
    return Plotly.relayout(other, Object.fromEntries(axes.map((key) => [`${key}.range`, [...range]])));
  })).finally(() => { busy = false; });
}));
window.addEventListener("beforeprint", () => plots.forEach((div) => Plotly.Plots.resize(div)));
