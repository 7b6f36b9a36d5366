#pragma once

/// Four times `momentum`, by way of every kind of options.
double sum_of_options(double momentum);
